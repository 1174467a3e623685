"""The API of IBM's DDL, implemented with tf.mpi. The public names are in compat/ddl."""
