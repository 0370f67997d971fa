package train

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"penstock.example/data"
	"penstock.example/internal/disk"
	"penstock.example/optim"
	"penstock.example/safetensors"
)

// formatVersion is the version of the checkpoint format. It changes when an older penstock could misread
// a newer checkpoint, or the other way round.
const formatVersion = 2

// stateFile is the name of a checkpoint's index.
const stateFile = "state.json"

// Kinds of a checkpoint's files of tensors. Names of tensors are unique within a kind.
const (
	modelKind     = "model"
	optimizerKind = "optimizer"
)

// shardName is the name of the file that a rank writes, by the convention of Hugging Face for models in
// several files. The index says which tensors are in it.
func shardName(kind string, rank, ranks int) string {
	if ranks == 1 {
		return kind + ".safetensors"
	}
	return fmt.Sprintf("%s-%05d-of-%05d.safetensors", kind, rank+1, ranks)
}

// Progress is where a run stands between two steps.
type Progress struct {
	Step     int64         `json:"step"`     // steps taken, counted over all runs that continued each other
	Position data.Position `json:"position"` // of the next batch
	// Best is the best validation, nil before the first. The checkpoint of its step is kept.
	Best *Best `json:"best,omitempty"`
	// Scaler is the Loop's, nil without one.
	Scaler *optim.Scaler `json:"scaler,omitempty"`
}

// Contents is the index of a checkpoint: the content of state.json.
type Contents struct {
	Version int `json:"version"` // of the format
	Progress
	// Recipe is as it was written; its settings may be of types that only the writer knows.
	Recipe  json.RawMessage  `json:"recipe"`
	Updates map[string]int64 `json:"updates"` // the optimizer's count for each parameter
	Files   map[string]File  `json:"files"`   // by name
	// SHA256 is the hash of state.json with an empty SHA256.
	SHA256 string `json:"sha256"`
}

// File is a file of a checkpoint, with the model's tensors or the optimizer's state.
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

// Bytes is the size of the tensor.
func (t Tensor) Bytes() int64 {
	size, _ := safetensors.Tensor{DType: t.DType, Shape: t.Shape}.Size()
	return size
}

// MarshalText makes JSON of a Tensor a string.
func (t Tensor) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (t *Tensor) UnmarshalText(text []byte) error {
	dtype, shape, _ := strings.Cut(strings.TrimSuffix(string(text), "]"), "[")
	*t = Tensor{DType: safetensors.DType(dtype), Shape: []int64{}}
	for _, size := range strings.Fields(shape) {
		n, err := strconv.ParseInt(size, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is no type and shape of a tensor, such as F32[12 16]", text)
		}
		t.Shape = append(t.Shape, n)
	}
	return nil
}

// of lists the files of a kind, in the order of names; of all kinds for "".
func (c Contents) of(kind string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.Files)),
		func(name string) bool { return !strings.HasPrefix(name, kind) })
}

// encode returns the content of state.json, with its own hash in it.
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

// readContents reads and checks state.json of the checkpoint at path.
func readContents(path string) (c Contents, err error) {
	content, err := disk.Read(filepath.Join(path, stateFile), disk.MaxJSON)
	if err != nil {
		return c, &DamagedError{path, err}
	}
	var again []byte
	if err = json.Unmarshal(content, &c); err == nil {
		again, err = c.encode()
	}
	switch {
	case c.Version != 0 && c.Version != formatVersion:
		return c, fmt.Errorf("train: checkpoint %s has version %d of the format, this penstock "+
			"reads version %d: resume it with the penstock that wrote it", path, c.Version, formatVersion)
	case err == nil && !bytes.Equal(again, content):
		err = errors.New("its content does not have the hash that it says")
	}
	if err != nil {
		return c, &DamagedError{path, fmt.Errorf(stateFile+": %w", err)}
	}
	return c, nil
}

// DamagedError is a checkpoint that was changed after it was written.
type DamagedError struct {
	Path    string // of the checkpoint
	Problem error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("train: checkpoint %s is damaged: %v", e.Path, e.Problem)
}

func (e *DamagedError) Unwrap() error { return e.Problem }

// check returns an error unless the file at path has the bytes that were written.
func (f File) check(path string) error {
	name := filepath.Base(path)
	file, err := disk.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if n := info.Size(); n != f.Bytes {
		return fmt.Errorf("%s has %d bytes, %d were written", name, n, f.Bytes)
	}
	h := sha256.New()
	if _, err := file.WriteTo(h); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != f.SHA256 {
		return fmt.Errorf("%s: its content does not have the hash that was written", name)
	}
	return nil
}
