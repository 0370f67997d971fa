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
	"strings"

	"penstock.example/data"
	"penstock.example/internal/disk"
	"penstock.example/optim"
	"penstock.example/safetensors"
)

// formatVersion is the version of the checkpoint format that is written. It changes when an older
// penstock could misread a newer checkpoint, or the other way round. Version 1, whose two files are
// not listed with their tensors, is read as well.
const formatVersion = 2

// stateFile is the index of a checkpoint: what is in it besides tensors, and its other files.
const stateFile = "state.json"

// Progress is where a run stands between two steps.
type Progress struct {
	Step     int64         `json:"step"`     // steps taken, counted over all runs that continued each other
	Position data.Position `json:"position"` // of the next batch
	// Best is the best validation, nil before the first. The checkpoint of its step is kept.
	Best *Best `json:"best,omitempty"`
	// Scaler is that of the Loop, nil without one.
	Scaler *optim.Scaler `json:"scaler,omitempty"`
}

// state is the content of state.json.
type state struct {
	Version int `json:"version"`
	Progress
	// Recipe is as it was written; its settings may be of types that only the writer knows.
	Recipe  json.RawMessage     `json:"recipe"`
	Updates map[string]int64    `json:"updates"` // the optimizer's count for each parameter
	Files   map[string]fileMark `json:"files"`
	// SHA256 is of this file as it is with an empty SHA256: a flipped digit in a step is damage as
	// much as one in a weight.
	SHA256 string `json:"sha256"`
}

// names lists the checkpoint's files but for the index.
func (s state) names() []string { return slices.Sorted(maps.Keys(s.Files)) }

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

// DamagedError says that a checkpoint is not what was written.
type DamagedError struct {
	Path    string // of the checkpoint
	Problem error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("train: checkpoint %s is damaged: %v", e.Path, e.Problem)
}

func (e *DamagedError) Unwrap() error { return e.Problem }

// MissingError says that files of a checkpoint are in no directory that was looked at. Those that are
// there need not be damaged: processes that share no file system have written each their own.
type MissingError struct {
	Path  string // of the checkpoint
	Files []*FileError
}

func (e *MissingError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "train: checkpoint %s lacks files: ", e.Path)
	for _, f := range e.Files {
		text.WriteString(f.Error() + "; ")
	}
	return fmt.Sprintf("%scopy them into %s from the machine that wrote them", &text, e.Path)
}

func (e *MissingError) Unwrap() error { return fs.ErrNotExist }

// readState reads and checks state.json of the checkpoint at path.
func readState(path string) (state, error) {
	content, err := disk.Read(filepath.Join(path, stateFile), disk.MaxJSON)
	if err != nil {
		return state{}, &DamagedError{path, err}
	}
	damaged := func(format string, args ...any) (state, error) {
		return state{}, &DamagedError{path, fmt.Errorf(stateFile+": "+format, args...)}
	}
	var version struct{ Version int }
	if err := json.Unmarshal(content, &version); err != nil {
		return damaged("%w", err)
	}
	if version.Version < 1 || version.Version > formatVersion {
		return state{}, fmt.Errorf("train: checkpoint %s has version %d of the format, this penstock reads versions 1 to %d: resume it with the penstock that wrote it",
			path, version.Version, formatVersion)
	}
	var s state
	if err := json.Unmarshal(content, &s); err != nil {
		return damaged("%w", err)
	}
	again, err := s.encode()
	if err != nil {
		return damaged("%w", err)
	}
	if !bytes.Equal(again, content) {
		return damaged("its content does not have the hash that it says")
	}
	if err := s.complete(); err != nil {
		return damaged("%w", err)
	}
	if s.Version == 1 {
		s.listTensors(path)
	}
	return s, nil
}

// listTensors lists the tensors of files whose index does not. A file that cannot be read has none:
// it is damaged, which its hash tells.
func (s state) listTensors(path string) {
	for name, mark := range s.Files {
		file, err := safetensors.Open(filepath.Join(path, name))
		if err != nil {
			continue
		}
		mark.Tensors = marks(file.Tensors())
		s.Files[name] = mark
		file.Close() // it was only read
	}
}

// complete returns an error unless the index can be that of a checkpoint.
func (s state) complete() error {
	for _, kind := range []string{modelKind, optimizerKind} {
		if len(s.of(kind)) == 0 {
			return fmt.Errorf("%s is not listed", shardName(kind, 0, 1))
		}
		twice := map[string]bool{}
		for _, name := range s.of(kind) {
			for tensor := range s.Files[name].Tensors {
				if twice[tensor] {
					return fmt.Errorf("tensor %q is in two files", tensor)
				}
				twice[tensor] = true
			}
		}
	}
	for _, name := range s.names() {
		if kindOf(name) == "" {
			return fmt.Errorf("a file %q is listed, which no checkpoint has", name)
		}
	}
	if s.Step < 0 {
		return errors.New("the step is negative")
	}
	return nil
}
