package train

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"penstock.example/safetensors"
)

// Contents is the index of a checkpoint.
type Contents struct {
	Path    string `json:"path"`
	Version int    `json:"version"` // of the format
	Progress
	Recipe  json.RawMessage  `json:"recipe"`
	Updates map[string]int64 `json:"updates"` // the optimizer's count for each parameter
	Files   []File           `json:"files"`   // those of the model first, in the order of their names
}

// File is a file of a checkpoint.
type File struct {
	Name      string   `json:"name"`
	Optimizer bool     `json:"optimizer"` // it has the optimizer's state, not the model
	Bytes     int64    `json:"bytes"`
	SHA256    string   `json:"sha256"`
	Tensors   []Tensor `json:"tensors"` // in the order of their names
}

// Tensor is a tensor in a file of a checkpoint.
type Tensor struct {
	Name  string            `json:"name"`
	DType safetensors.DType `json:"dtype"`
	Shape []int64           `json:"shape"`
	Bytes int64             `json:"bytes"`
}

// OpenCheckpoint reads the index of the checkpoint in the directory at path, for one process. Its
// files are not looked at before they are read; Damage checks them. The error is *DamagedError if
// the index is damaged.
func OpenCheckpoint(path string) (*Checkpoint, error) {
	st, err := readState(path)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Path: path, state: st}
	return c, c.fill()
}

// Contents returns the index. The caller owns it.
func (c *Checkpoint) Contents() Contents {
	out := Contents{Path: c.Path, Version: c.state.Version, Progress: c.Progress,
		Recipe:  bytes.Clone(c.state.Recipe),
		Updates: maps.Clone(c.state.Updates)}
	for _, name := range c.state.names() { // "model" is before "optimizer"
		mark := c.state.Files[name]
		f := File{Name: name, Optimizer: kindOf(name) == optimizerKind, Bytes: mark.Bytes,
			SHA256: mark.SHA256, Tensors: []Tensor{}}
		for _, tensor := range slices.Sorted(maps.Keys(mark.Tensors)) {
			t := mark.Tensors[tensor]
			size, _ := t.size() // which was checked as the index was read
			f.Tensors = append(f.Tensors, Tensor{tensor, t.DType, slices.Clone(t.Shape), size})
		}
		out.Files = append(out.Files, f)
	}
	return out
}

// Damage checks every byte of the files against their hashes. It returns an error for each damaged file.
func (c *Checkpoint) Damage() []error { return c.damageOf(c.state.names()) }

// Merge calls write once with all parameters and buffers of the model, such as to write them to one file.
// Elements are read one tensor at a time. The error is *DamagedError if a file of the model is damaged.
func (c *Checkpoint) Merge(write func(model []safetensors.Tensor) error) error {
	if err := c.checkModel(); err != nil {
		return err
	}
	var model []safetensors.Tensor
	for _, name := range c.state.of(modelKind) {
		file, err := safetensors.Open(filepath.Join(c.Path, name))
		if err != nil {
			return &DamagedError{c.Path, err}
		}
		defer file.Close() // it was only read
		for _, t := range file.Tensors() {
			t.Load = func(write func([]byte) error) error {
				t, err := file.Read(t.Name)
				if err != nil {
					return err
				}
				return write(t.Data)
			}
			model = append(model, t)
		}
	}
	if err := write(model); err != nil {
		return fmt.Errorf("train: merging the model of %s: %w", c.Path, err)
	}
	return nil
}
