package safetensors

import (
	"fmt"
	"strings"
)

// FormatError is a file that is not what the format demands. Other failures of reading, such as a disk's, are returned
// as they come.
type FormatError struct {
	Path    string // the file's, if it was opened by one
	Tensor  string // the tensor concerned, if one is
	Offset  int64  // the place in the file, in bytes from its start
	Problem string // what was found and what was expected
}

func (e *FormatError) Error() string {
	var b strings.Builder
	b.WriteString("safetensors: ")
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	fmt.Fprintf(&b, "byte %d: ", e.Offset)
	if e.Tensor != "" {
		fmt.Fprintf(&b, "tensor %q: ", e.Tensor)
	}
	b.WriteString(e.Problem)
	return b.String()
}
