"""Names of other libraries, for scripts that were written for them.

`import horovod` finds compat/horovod where no Horovod is installed: finder.py.
"""
