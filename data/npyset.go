package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"penstock.example/internal/disk"
)

const npyRemedy = "name a directory with x.npy and y.npy, or train_x.npy, train_y.npy, test_x.npy and test_y.npy, with --data-dir"

// npyFiles lists inputs and targets to train with, and those to test with if there are any.
func npyFiles(directory string) ([]string, error) {
	if directory == "" {
		return nil, errors.New("data: npy has no usual place: " + npyRemedy)
	}
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(directory, name))
		return err == nil
	}
	var names []string
	switch {
	case exists("x.npy"):
		names = []string{"x.npy", "y.npy"}
	case exists("train_x.npy"):
		names = []string{"train_x.npy", "train_y.npy"}
		for _, part := range []string{"val", "test"} {
			if exists(part + "_x.npy") {
				names = append(names, part+"_x.npy", part+"_y.npy")
				break
			}
		}
	default:
		return nil, fmt.Errorf("data: npy: neither x.npy nor train_x.npy in %s: %w: %s", directory, fs.ErrNotExist, npyRemedy)
	}
	var paths []string
	for _, name := range names {
		if !exists(name) {
			return nil, fmt.Errorf("data: npy: no %s in %s, which has the targets of %s: %w: %s", name, directory, paths[len(paths)-1], fs.ErrNotExist, npyRemedy)
		}
		paths = append(paths, filepath.Join(directory, name))
	}
	return paths, nil
}

// openNPY reads arrays from files.
func openNPY(directory string, o Options) (train, test Dataset, err error) {
	paths, err := npyFiles(directory)
	if err != nil {
		return nil, nil, err
	}
	var arrays []Array
	for _, path := range paths {
		array, err := readNPYFile(path)
		if err != nil {
			return nil, nil, fmt.Errorf("data: npy: %s: %w", path, err)
		}
		arrays = append(arrays, array)
	}
	classes := o.Classes
	if o.Like != nil && classes == 0 {
		classes = o.Like.Classes
	}
	for i := 0; i < len(arrays); i += 2 {
		arrays[i], arrays[i+1] = samples(arrays[i]), targets(arrays[i+1])
		if o.Classes == 0 && o.Like == nil { // those of both parts
			classes = max(classes, classesOf(arrays[i].Int64, arrays[i+1].Int64))
		}
	}
	var sets []*Arrays
	for i := 0; i < len(arrays); i += 2 {
		set, err := NewArrays("npy", classes, arrays[i], arrays[i+1])
		switch {
		case err != nil:
		case o.Mean != nil || o.Std != nil:
			err = set.normalise(o.Mean, o.Std)
		case o.Like != nil && o.Like.Mean != nil && o.Like.Source == set.input.Kind && slices.Equal(o.Like.Input.Shape, set.info.Input.Shape):
			if set.input.Kind == Float32 {
				set.standardise(o.Like.Mean, o.Like.Std)
			} else {
				err = set.normalise(o.Like.Mean, o.Like.Std)
			}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w (in %s and %s)", err, paths[i], paths[i+1])
		}
		sets = append(sets, set)
	}
	if len(sets) == 2 {
		if err := sameKind(sets[0].info, sets[1].info); err != nil {
			return nil, nil, fmt.Errorf("%w (in %s)", err, paths[2])
		}
		if err := o.noHoldout("npy", paths[2]); err != nil {
			return nil, nil, err
		}
		return sets[0], sets[1], nil
	}
	return Split(sets[0], o.Holdout, o.Seed)
}

func readNPYFile(path string) (Array, error) {
	file, err := disk.Open(path)
	if err != nil {
		return Array{}, err
	}
	defer file.Close() // only read
	return DecodeNPY(file)
}

// samples is an array of inputs. Rows of numbers are images of one pixel, with a channel for each.
func samples(x Array) Array {
	if len(x.Shape) == 2 && x.Kind != Int64 {
		x.Shape = append(x.Shape[:2:2], 1, 1)
	}
	return x
}

// targets is an array of targets: numbers as a row for each input, classes as Int64.
func targets(y Array) Array {
	switch {
	case y.Kind == Float32 && len(y.Shape) == 1:
		y.Shape = append(y.Shape[:1:1], 1)
	case y.Kind != Float32 && len(y.Shape) == 2 && y.Shape[1] == 1:
		y.Shape = y.Shape[:1]
	}
	if y.Kind == Uint8 {
		y.Kind, y.Int64, y.Uint8 = Int64, converted[int64](y.Uint8), nil
	}
	return y
}

// sameKind returns an error if what is to test with is not as what is to train with.
func sameKind(train, test Info) error {
	if a, b := fmt.Sprint(train.Input, train.Target), fmt.Sprint(test.Input, test.Target); a != b {
		return fmt.Errorf("data: %s: inputs and targets to train with are %s, and to test with %s; want the same shapes and kinds", train.Name, a, b)
	}
	return nil
}

// noHoldout returns an error if a share is to be held out of a set that has a part to test with.
func (o Options) noHoldout(name, test string) error {
	if o.Holdout == 0 {
		return nil
	}
	return &ConfigError{Of: "data: " + name, Field: "Holdout", Value: o.Holdout,
		Problem: test + " is there to test with", Remedy: "want it left out, or no part to test with"}
}
