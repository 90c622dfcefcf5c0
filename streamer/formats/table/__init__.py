"""Records of a table: what recoders make of rows with fields that all samples have."""
