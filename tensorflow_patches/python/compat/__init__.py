"""Packages with the names of other libraries, for scripts that were written for those.

`import horovod` and `import ddl` find them if the real ones are not installed; see finder.py.
"""
