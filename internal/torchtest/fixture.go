package torchtest

import (
	"os"
	"path/filepath"
	"strings"

	"penstock.example/torch"
)

// Fixture returns the path of a file in a folder of PyTorch's results (scripts/fixtures). The
// folder has what PyTorch 1.13 computes. With a libtorch of version 2 the file of the same name in
// FOLDER-2.6 takes its place if it exists: PyTorch 2.6 computes some cases otherwise.
func Fixture(folder, name string) string {
	if !strings.HasPrefix(torch.Version(), "1.") {
		later := filepath.Join(folder+"-2.6", name)
		if _, err := os.Stat(later); err == nil {
			return later
		}
	}
	return filepath.Join(folder, name)
}
