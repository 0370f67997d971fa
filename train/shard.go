package train

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"penstock.example/internal/disk"
	"penstock.example/optim"
	"penstock.example/safetensors"
)

// Kinds of a checkpoint's files of tensors. Names of tensors are unique within a kind.
const (
	modelKind     = "model"
	optimizerKind = "optimizer"
)

// shardName is the name of the file that the process of a rank writes, of so many. It follows the
// convention of Hugging Face for models in several files. The number says nothing about what is in
// the file: the index does.
func shardName(kind string, rank, of int) string {
	if of == 1 {
		return kind + ".safetensors"
	}
	return fmt.Sprintf("%s-%05d-of-%05d.safetensors", kind, rank+1, of)
}

var shardNames = regexp.MustCompile(`^(` + modelKind + `|` + optimizerKind + `)(-\d{5,}-of-\d{5,})?\.safetensors$`)

// kindOf is the kind of the file of this name, or "" if no checkpoint has one.
func kindOf(name string) string {
	if found := shardNames.FindStringSubmatch(name); found != nil {
		return found[1]
	}
	return ""
}

// of lists the files of a kind.
func (s state) of(kind string) []string {
	return slices.DeleteFunc(s.names(), func(name string) bool { return kindOf(name) != kind })
}

// fileMark says what a file must be.
type fileMark struct {
	Bytes   int64                 `json:"bytes"`
	SHA256  string                `json:"sha256"`
	Tensors map[string]tensorMark `json:"tensors,omitempty"` // by name
}

// tensorMark is what the index tells of a tensor, written as "F32[12 16]".
type tensorMark struct {
	DType safetensors.DType
	Shape []int64
}

func (t tensorMark) String() string { return fmt.Sprintf("%s%v", t.DType, t.Shape) }

func (t tensorMark) size() (int64, error) {
	return safetensors.Tensor{DType: t.DType, Shape: t.Shape}.Size()
}

// MarshalText makes JSON of a tensorMark a string.
func (t tensorMark) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (t *tensorMark) UnmarshalText(text []byte) error {
	dtype, shape, ok := strings.Cut(string(text), "[")
	shape, closed := strings.CutSuffix(shape, "]")
	*t = tensorMark{DType: safetensors.DType(dtype), Shape: []int64{}}
	for _, size := range strings.Fields(shape) {
		n, err := strconv.ParseInt(size, 10, 64)
		ok = ok && err == nil
		t.Shape = append(t.Shape, n)
	}
	if _, err := t.size(); err != nil || !ok || !closed {
		return fmt.Errorf("%q is no type and shape of a tensor, such as F32[12 16]", text)
	}
	return nil
}

// marks lists tensors as the index does.
func marks(tensors []safetensors.Tensor) map[string]tensorMark {
	list := make(map[string]tensorMark, len(tensors))
	for _, t := range tensors {
		list[t.Name] = tensorMark{t.DType, append([]int64{}, t.Shape...)}
	}
	return list
}

// check returns an error unless the file at path matches the mark.
func (m fileMark) check(path string) error {
	f, err := disk.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return m.missing(path)
		}
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	n, h := info.Size(), sha256.New()
	if n == m.Bytes { // a file of another size need not be read to be refused
		n, err = f.WriteTo(h)
	}
	switch name := filepath.Base(path); {
	case err != nil:
		return err
	case n < m.Bytes:
		return fmt.Errorf("%s is truncated: it has %d bytes of %d%s", name, n, m.Bytes, m.layers(name))
	case n > m.Bytes:
		return fmt.Errorf("%s has %d bytes, %d were written%s", name, n, m.Bytes, m.layers(name))
	case hex.EncodeToString(h.Sum(nil)) != m.SHA256:
		return fmt.Errorf("%s: its content does not have the hash that was written%s", name, m.layers(name))
	}
	return nil
}

// missing is the error of a file that is not there.
func (m fileMark) missing(path string) error {
	name := filepath.Base(path)
	return &absentError{fmt.Sprintf("%s is missing%s", name, m.layers(name))}
}

// absentError is fs.ErrNotExist in other words.
type absentError struct{ text string }

func (e *absentError) Error() string { return e.text }

func (e *absentError) Unwrap() error { return fs.ErrNotExist }

// nowhere returns a *MissingError if files of these kinds are in the directory of no member.
func (c *Checkpoint) nowhere(kinds ...string) error {
	var missing []*FileError
	for i, name := range c.state.names() {
		if c.reader(i) < 0 && slices.Contains(kinds, kindOf(name)) {
			missing = append(missing, &FileError{name, true, c.state.Files[name].missing(name)})
		}
	}
	if missing == nil {
		return nil
	}
	return &MissingError{c.Path, missing}
}

// layers says for an error which layers are in the file of this name.
func (m fileMark) layers(name string) string {
	const most = 8
	var layers []string
	for tensor := range m.Tensors {
		if kindOf(name) == optimizerKind {
			tensor = optim.StateTensor{Name: tensor}.Param()
		}
		layers = append(layers, layerOf(tensor))
	}
	slices.SortFunc(layers, inOrder)
	layers = slices.Compact(layers)
	switch n := len(layers); {
	case n == 0:
		return ""
	case n == 1:
		return "; it is of layer " + layers[0]
	case n <= most:
		return "; it is of the layers " + strings.Join(layers[:n-1], ", ") + " and " + layers[n-1]
	default:
		return fmt.Sprintf("; it is of %d layers: %s, ... %s", n, strings.Join(layers[:most], ", "), layers[n-1])
	}
}

// layerOf is the name of the layer that has a parameter.
func layerOf(param string) string {
	if dot := strings.LastIndexByte(param, '.'); dot >= 0 {
		return param[:dot]
	}
	return param
}

// inOrder compares names of layers: numbers in them count as numbers.
func inOrder(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	return cmp.Or(slices.CompareFunc(as, bs, func(a, b string) int {
		n, notA := strconv.ParseUint(a, 10, 63)
		m, notB := strconv.ParseUint(b, 10, 63)
		switch {
		case notA == nil && notB == nil:
			return cmp.Compare(n, m)
		case notA == nil:
			return -1
		case notB == nil:
			return 1
		}
		return cmp.Compare(a, b)
	}), cmp.Compare(a, b))
}
