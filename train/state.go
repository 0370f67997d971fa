package train

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"penstock/data"
	"penstock/internal/disk"
)

// formatVersion is the version of the checkpoint format. It changes when an older penstock could
// misread a newer checkpoint, or the other way round.
const formatVersion = 1

// Names of a checkpoint's files.
const (
	modelFile     = "model.safetensors"
	optimizerFile = "optimizer.safetensors"
	stateFile     = "state.json"
)

// Progress is where a run stands between two steps.
type Progress struct {
	Step     int64         `json:"step"`     // steps taken, counted over all runs that continued each other
	Position data.Position `json:"position"` // of the next batch
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

// fileMark says what a file must be.
type fileMark struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
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

// DamagedError says that a checkpoint is not what was written.
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
	damaged := func(format string, args ...any) (state, error) {
		return state{}, &DamagedError{path, fmt.Errorf(stateFile+": "+format, args...)}
	}
	var version struct{ Version int }
	if err := json.Unmarshal(content, &version); err != nil {
		return damaged("%w", err)
	}
	if version.Version != formatVersion {
		return state{}, fmt.Errorf("train: checkpoint %s has version %d of the format, this penstock reads version %d: resume it with the penstock that wrote it",
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
	for _, name := range []string{modelFile, optimizerFile} {
		if _, ok := s.Files[name]; !ok {
			return damaged("%s is not listed", name)
		}
	}
	return s, nil
}

// check returns an error unless the file matches the mark.
func (m fileMark) check(path string) error {
	f, err := disk.Open(path)
	if err != nil {
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
		return fmt.Errorf("%s is truncated: it has %d bytes of %d", name, n, m.Bytes)
	case n > m.Bytes:
		return fmt.Errorf("%s has %d bytes, %d were written", name, n, m.Bytes)
	case hex.EncodeToString(h.Sum(nil)) != m.SHA256:
		return errors.New(name + ": its content does not have the hash that was written")
	}
	return nil
}
