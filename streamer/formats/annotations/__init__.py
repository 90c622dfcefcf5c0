"""Files of annotations to tables of rows by key: the part that runs in a recoder."""
