"""How long engine steps take: from measured kernels before, corrected by what engines show."""
