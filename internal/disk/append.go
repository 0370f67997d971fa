package disk

import "os"

// OpenAppend opens the regular file at path for reading and for writing at its end, and makes it if
// there is none. As with [Open] it never blocks, links are followed, and anything but a regular file
// is refused with ErrNotRegular. The caller closes the file.
func OpenAppend(path string) (*os.File, error) {
	if before, err := os.Stat(path); err == nil {
		if err := regular(path, before); err != nil {
			return nil, err
		}
	}
	return openRegular(path, os.O_RDWR|os.O_APPEND|os.O_CREATE)
}
