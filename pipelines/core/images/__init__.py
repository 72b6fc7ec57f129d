"""Looking at images, and turning their bytes into pixels."""
