package trace

import (
	"fmt"
	"os"
	"path/filepath"

	"penstock/schedule"
)

// WriteFile writes the timeline to a file, as [Write] does. The file appears under its name when it is complete:
// with an error, what was there before is still there, untouched. The folder must exist.
func WriteFile(path string, t schedule.Timeline, opts Options) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := Write(f, t, opts); err != nil {
		return err
	}
	// CreateTemp makes a file for its owner alone; a trace is made to be shown.
	if err := f.Chmod(0o644); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}
