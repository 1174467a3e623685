"""horovod.common."""
