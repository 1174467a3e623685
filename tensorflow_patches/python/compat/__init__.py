"""Modules named like other libraries, for scripts that were written for those.

`import horovod` finds compat/horovod if no Horovod is installed; see finder.py.
"""
