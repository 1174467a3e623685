"""What a script that was written for IBM's DDL calls. compat/ddl has its names."""
