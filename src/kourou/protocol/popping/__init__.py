"""Wire forms and stored forms of pop consumption."""
