"""What people do with a store that no broker uses: look into it, check, mend, take out, put in."""
