package data

// OpenCIFAR10 reads files with fewer records than the real ones' 10,000.
var OpenCIFAR10 = openCIFAR10
