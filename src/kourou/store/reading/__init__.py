"""Reading messages: which ones a reader gets, compared with what was written, and mended."""
