package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// partFiles lists the file at path, or, of a directory, train.EXT and the one to test with if there
// is one: val.EXT or test.EXT.
func partFiles(name, path, extension string) ([]string, error) {
	remedy := fmt.Sprintf("name a file, or a directory with train%[1]s and val%[1]s or test%[1]s, with --data-dir", extension)
	if path == "" {
		return nil, fmt.Errorf("data: %s has no usual place: %s", name, remedy)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("data: %s: %w: %s", name, err, remedy)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	train, err := locate([]string{path}, "train"+extension)
	if err != nil {
		return nil, fmt.Errorf("data: %s: %w: %s", name, err, remedy)
	}
	test, err := locate([]string{path}, "val"+extension, "test"+extension)
	if errors.Is(err, fs.ErrNotExist) {
		return []string{train}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("data: %s: %w", name, err)
	}
	return []string{filepath.Clean(train), filepath.Clean(test)}, nil
}
