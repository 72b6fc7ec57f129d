"""Finding samples in raw data, and deciding who stays."""
