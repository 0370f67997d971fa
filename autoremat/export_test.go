package autoremat

// ReserveOf is the part of free memory that a limit of 0 leaves free.
var ReserveOf = reserveOf
