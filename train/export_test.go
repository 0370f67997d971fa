package train

import "os"

// WithSync is the store with another way to force files to disk.
func (s Store) WithSync(sync func(*os.File) error) Store {
	s.sync = sync
	return s
}
