"""The 18 delay levels, and the records that wait in them."""
