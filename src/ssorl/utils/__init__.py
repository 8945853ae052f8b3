"""Tools that every layer uses: errors, files, cache, provenance, validation, progress, display, networks."""
