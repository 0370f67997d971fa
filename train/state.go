package train

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// kindOf is the kind of the file of this name, or "" if no checkpoint has one.
func kindOf(name string) string {
	for _, kind := range []string{modelKind, optimizerKind} {
		if name == kind+".safetensors" || strings.HasPrefix(name, kind+"-") {
			return kind
		}
	}
	return ""
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

// state is the content of state.json.
type state struct {
	Version int `json:"version"`
	Progress
	// Recipe is as it was written; its settings may be of types that only the writer knows.
	Recipe  json.RawMessage      `json:"recipe"`
	Updates map[string]int64     `json:"updates"` // the optimizer's count for each parameter
	Files   map[string]fileEntry `json:"files"`
	// SHA256 is the hash of this file with an empty SHA256.
	SHA256 string `json:"sha256"`
}

// fileEntry is a file in the index.
type fileEntry struct {
	Bytes   int64                  `json:"bytes"`
	SHA256  string                 `json:"sha256"`
	Tensors map[string]tensorEntry `json:"tensors,omitempty"` // by name
}

// tensorEntry is a tensor in the index, written as "F32[12 16]".
type tensorEntry struct {
	DType safetensors.DType
	Shape []int64
}

func (t tensorEntry) String() string { return fmt.Sprintf("%s%v", t.DType, t.Shape) }

func (t tensorEntry) size() (int64, error) {
	return safetensors.Tensor{DType: t.DType, Shape: t.Shape}.Size()
}

// MarshalText makes JSON of a tensorEntry a string.
func (t tensorEntry) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (t *tensorEntry) UnmarshalText(text []byte) error {
	dtype, shape, ok := strings.Cut(string(text), "[")
	shape, closed := strings.CutSuffix(shape, "]")
	*t = tensorEntry{DType: safetensors.DType(dtype), Shape: []int64{}}
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

// names lists the checkpoint's files but for the index.
func (s state) names() []string { return slices.Sorted(maps.Keys(s.Files)) }

// of lists the files of a kind.
func (s state) of(kind string) []string {
	return slices.DeleteFunc(s.names(), func(name string) bool { return kindOf(name) != kind })
}

// encode returns the file's content, with its own hash in it.
func (s state) encode() ([]byte, error) {
	s.SHA256 = ""
	plain, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(plain)
	s.SHA256 = hex.EncodeToString(sum[:])
	text, err := json.MarshalIndent(s, "", "  ")
	return append(text, '\n'), err
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

// readState reads and checks state.json of the checkpoint at path.
func readState(path string) (state, error) {
	content, err := disk.Read(filepath.Join(path, stateFile), disk.MaxJSON)
	if err != nil {
		return state{}, &DamagedError{path, err}
	}
	var version struct{ Version int }
	if err = json.Unmarshal(content, &version); err == nil && version.Version != formatVersion {
		return state{}, fmt.Errorf("train: checkpoint %s has version %d of the format, this penstock "+
			"reads version %d: resume it with the penstock that wrote it",
			path, version.Version, formatVersion)
	}
	var s state
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	var again []byte
	if err == nil {
		again, err = s.encode()
	}
	if err == nil && !bytes.Equal(again, content) {
		err = errors.New("its content does not have the hash that it says")
	}
	if err != nil {
		return state{}, &DamagedError{path, fmt.Errorf(stateFile+": %w", err)}
	}
	return s, nil
}

// check returns an error unless the file at path matches its entry.
func (e fileEntry) check(path string) error {
	name := filepath.Base(path)
	f, err := disk.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing", name)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	n, h := info.Size(), sha256.New()
	if n == e.Bytes { // a file of another size need not be read to be refused
		n, err = f.WriteTo(h)
	}
	switch {
	case err != nil:
		return err
	case n != e.Bytes:
		return fmt.Errorf("%s has %d bytes, %d were written", name, n, e.Bytes)
	case hex.EncodeToString(h.Sum(nil)) != e.SHA256:
		return fmt.Errorf("%s: its content does not have the hash that was written", name)
	}
	return nil
}
