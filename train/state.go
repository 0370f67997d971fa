package train

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"penstock.example/data"
	"penstock.example/internal/disk"
	"penstock.example/optim"
	"penstock.example/safetensors"
)

// formatVersion changes if an older penstock could misread a newer checkpoint, or a newer penstock an
// older one.
const formatVersion = 2

// stateFile is a checkpoint's index.
const stateFile = "state.json"

// Kinds of files with tensors. Names of tensors are unique within a kind.
const (
	modelKind     = "model"
	frozenKind    = "model-frozen" // of parameters that are not trained; also of modelKind
	optimizerKind = "optimizer"
)

// shardName returns the name of a rank's file, as Hugging Face names models in several files.
func shardName(kind string, rank, ranks int) string {
	if ranks == 1 {
		return kind + ".safetensors"
	}
	return fmt.Sprintf("%s-%05d-of-%05d.safetensors", kind, rank+1, ranks)
}

// Progress is the state of a run between two steps.
type Progress struct {
	Step     int64         `json:"step"`     // steps taken, including those before a resume
	Position data.Position `json:"position"` // of the next batch
	// Best is the best validation, nil before the first. Store keeps its checkpoint.
	Best *Best `json:"best,omitempty"`
	// Copies of the Loop's; may be nil.
	Scaler  *optim.Scaler  `json:"scaler,omitempty"`
	Plateau *optim.Plateau `json:"plateau,omitempty"`
}

// Contents is the index of a checkpoint: the content of state.json.
type Contents struct {
	Version int `json:"version"` // of the format
	Progress
	Recipe  json.RawMessage  `json:"recipe"`
	Updates map[string]int64 `json:"updates"` // the optimizer's count for each parameter
	Files   map[string]File  `json:"files"`   // by name
	SHA256  string           `json:"sha256"`  // of state.json with an empty SHA256
}

// File describes a file with the model's tensors or the optimizer's state.
type File struct {
	Bytes   int64             `json:"bytes"`
	SHA256  string            `json:"sha256"`
	Tensors map[string]Tensor `json:"tensors,omitempty"` // by name
}

// Tensor is the type and shape of a tensor in a file, written as "F32[12 16]".
type Tensor struct {
	DType safetensors.DType
	Shape []int64
}

func (t Tensor) String() string { return fmt.Sprintf("%s%v", t.DType, t.Shape) }

// Bytes returns the size of the tensor.
func (t Tensor) Bytes() int64 {
	size, _ := safetensors.Tensor{DType: t.DType, Shape: t.Shape}.Size()
	return size
}

// MarshalText returns String's text.
func (t Tensor) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (t *Tensor) UnmarshalText(text []byte) error {
	dtype, shape, _ := strings.Cut(string(text), "[")
	t.DType = safetensors.DType(dtype)
	return json.Unmarshal([]byte("["+strings.ReplaceAll(shape, " ", ",")), &t.Shape)
}

// fileNames lists the files of a kind, or all files if kind is empty, sorted.
func (c Contents) fileNames(kind string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.Files)),
		func(name string) bool { return !strings.HasPrefix(name, kind) })
}

// encode returns the content of state.json with its hash.
func (c Contents) encode() ([]byte, error) {
	c.SHA256 = ""
	plain, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(plain)
	c.SHA256 = hex.EncodeToString(sum[:])
	text, err := json.MarshalIndent(c, "", "  ")
	return append(text, '\n'), err
}

// DamagedError is returned for a checkpoint that was changed after it was written.
type DamagedError struct {
	Path    string // of the checkpoint
	Problem error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("train: checkpoint %s is damaged: %v", e.Path, e.Problem)
}

func (e *DamagedError) Unwrap() error { return e.Problem }

// check returns an error unless the file at path has the size and the hash of f.
func (f File) check(path string) error {
	file, err := disk.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	h := sha256.New()
	n, err := file.WriteTo(h)
	switch {
	case err != nil:
		return err
	case n != f.Bytes:
		return fmt.Errorf("%s has %d bytes, %d were written", filepath.Base(path), n, f.Bytes)
	case hex.EncodeToString(h.Sum(nil)) != f.SHA256:
		return fmt.Errorf("%s: its content does not match its hash", filepath.Base(path))
	}
	return nil
}
