"""What a script that was written for IBM's DDL calls. faces/ddl has its names."""
