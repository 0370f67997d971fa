package safetensors

import (
	"fmt"
	"io"

	"penstock.example/internal/disk"
)

// WriteFile writes a file as Write does, as a whole or not at all: whoever opens path, after a failure or a loss of
// power too, finds either the new file complete or what was there before. After an error nothing is left beside it; a
// crash may leave a temporary file, as path followed by a number and ".tmp".
func WriteFile(path string, tensors []Tensor, metadata map[string]string) error {
	if err := disk.Write(path, func(w io.Writer) error { return write(w, tensors, metadata) }); err != nil {
		return fmt.Errorf("safetensors: writing %s: %w", path, err)
	}
	return nil
}
