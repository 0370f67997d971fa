package data

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"penstock.example/internal/disk"
)

// npyFiles lists inputs and targets to train with, and to test with if they exist.
func npyFiles(directory string, _ Options) (paths []string, err error) {
	const want = "a directory with x.npy and y.npy, or train_x.npy, train_y.npy, test_x.npy and test_y.npy"
	if directory == "" {
		return nil, noPlace("npy", want)
	}
	exists := func(part string) bool {
		_, err := os.Stat(filepath.Join(directory, part+"x.npy"))
		return err == nil
	}
	parts := []string{""}
	if !exists("") {
		parts = []string{"train_"}
		for _, part := range []string{"val_", "test_"} {
			if exists(part) {
				parts = append(parts, part)
				break
			}
		}
	}
	for _, part := range parts {
		for _, name := range []string{part + "x.npy", part + "y.npy"} {
			path, err := locate([]string{directory}, name)
			if err != nil {
				return nil, fmt.Errorf("data: npy: %w: name %s", err, want)
			}
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// openNPY reads arrays from files.
func openNPY(directory string, o Options) (train, test Dataset, err error) {
	paths, err := npyFiles(directory, o)
	if err != nil {
		return nil, nil, err
	}
	var arrays []Array
	for i, path := range paths {
		array, err := readArray(path, decodeNPY)
		if err != nil {
			return nil, nil, fmt.Errorf("data: npy: %w", err)
		}
		if i%2 == 0 {
			array = samples(array)
		} else {
			array = targets(array)
		}
		arrays = append(arrays, array)
	}
	if o.Classes == 0 && o.TrainedOn != nil {
		o.Classes = o.TrainedOn.Classes
	} else if o.Classes == 0 { // those of both parts
		for _, a := range arrays {
			o.Classes = max(o.Classes, classesOf(a.Int64))
		}
	}
	var sets []*Arrays
	for i := 0; i < len(arrays); i += 2 {
		set, err := NewArrays("npy", o.Classes, arrays[i], arrays[i+1])
		if err == nil {
			err = set.asTrained(o)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w (in %s and %s)", err, paths[i], paths[i+1])
		}
		sets = append(sets, set)
	}
	return trainAndTest(o, "npy", sets)
}

// asTrained normalises the inputs by the options, or as Options.TrainedOn says.
func (a *Arrays) asTrained(o Options) error {
	mean, std := o.Mean, o.Std
	if t := o.TrainedOn; mean == nil && std == nil && t != nil && t.Source == a.input.Kind &&
		slices.Equal(t.Input.Shape, a.info.Input.Shape) {
		if mean, std = t.Mean, t.Std; t.Source == Float32 {
			a.standardise(mean, std)
			return nil
		}
	}
	if mean == nil && std == nil {
		return nil
	}
	return a.normalise(mean, std)
}

// readArray reads an array from a file. Errors name the file.
func readArray(path string, decode func(io.Reader) (Array, error)) (Array, error) {
	file, err := disk.Open(path)
	if err != nil {
		return Array{}, err
	}
	defer file.Close() // only read
	array, err := decode(file)
	if err != nil {
		return Array{}, fmt.Errorf("%s: %w", path, err)
	}
	return array, nil
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
