"""Where raw data comes from: drivers, downloads and the places of files below raw/."""
