package trace

import (
	"fmt"
	"io"

	"penstock.example/internal/disk"
	"penstock.example/schedule"
)

// WriteFile writes the timeline to a file, as [Write] does. The file appears under its name when it
// is complete: with an error, what was there before is still there, untouched. The folder must
// exist.
func WriteFile(path string, t schedule.Timeline, opts Options) error {
	var failed error // of Write, which names the package itself
	err := disk.Write(path, func(w io.Writer) error {
		failed = Write(w, t, opts)
		return failed
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}
