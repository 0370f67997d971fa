package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"penstock.example/internal/disk"
)

// mnistLike is a data set in MNIST's four files of 28 x 28 grey images in ten classes.
type mnistLike struct {
	name      string
	directory string // where it is if the caller does not say, "" if nowhere in particular
	fetch     string // where to get it
	mean, std float32
	classes   []string // names; nil where they are the digits
}

// Mean and standard deviation are those of all training pixels over 255, as the usual recipes round
// them (PyTorch's examples/mnist/main.py has MNIST's). A test computes Fashion-MNIST's from the
// files.
var (
	mnist = mnistLike{
		name:  "mnist",
		fetch: "https://ossci-datasets.s3.amazonaws.com/mnist/",
		mean:  0.1307, std: 0.3081,
	}
	fashionMNIST = mnistLike{
		name:      "fashion-mnist",
		directory: "/usr/share/datasets/fashion-mnist", // Debian's
		fetch:     "the Debian package dataset-fashion-mnist or https://github.com/zalandoresearch/fashion-mnist",
		mean:      0.2860, std: 0.3530,
		classes: []string{"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"},
	}
)

// place is the directory to read, the usual one for "".
func (m mnistLike) place(directory string) (string, error) {
	if directory == "" {
		directory = m.directory
	}
	if directory == "" {
		return "", fmt.Errorf("data: %s has no usual place: name the directory of its files with --data-dir; they are at %s",
			m.name, m.fetch)
	}
	return directory, nil
}

// files lists the images and labels of both parts.
func (m mnistLike) files(directory string) ([]string, error) {
	directory, err := m.place(directory)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, part := range []string{"train", "t10k"} {
		for _, kind := range []string{"-images-idx3-ubyte", "-labels-idx1-ubyte"} {
			path, err := m.locate(directory, part+kind)
			if err != nil {
				return nil, err
			}
			paths = append(paths, path)
		}
	}
	return paths, nil
}

func (m mnistLike) open(directory string, o Options) (train, test Dataset, err error) {
	if directory, err = m.place(directory); err != nil {
		return nil, nil, err
	}
	train, err = m.part(directory, "train", o)
	if err != nil {
		return nil, nil, err
	}
	test, err = m.part(directory, "t10k", o)
	if err != nil {
		return nil, nil, err
	}
	return train, test, nil
}

// part reads the images and labels of one of the parts, train and t10k.
func (m mnistLike) part(directory, part string, o Options) (*Images, error) {
	images, err := m.file(directory, part+"-images-idx3-ubyte", 3)
	if err != nil {
		return nil, err
	}
	if height, width := images.Shape[1], images.Shape[2]; height != 28 || width != 28 {
		return nil, fmt.Errorf("data: %s: %s-images-idx3-ubyte in %s has images of %d x %d, expected 28 x 28",
			m.name, part, directory, height, width)
	}
	images.Shape = slices.Insert(images.Shape, 1, 1) // a channel
	labels, err := m.file(directory, part+"-labels-idx1-ubyte", 1)
	if err != nil {
		return nil, err
	}

	mean, std := o.normalisation([]float32{m.mean}, []float32{m.std})
	set, err := NewImages(m.name, 10, images, labels, mean, std)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s's %s-images-idx3-ubyte and %s-labels-idx1-ubyte)", err, directory, part, part)
	}
	set.info.ClassNames = m.classes
	return set, nil
}

// locate returns the path of a file, plain or with .gz.
func (m mnistLike) locate(directory, name string) (string, error) {
	path, err := locate([]string{directory}, name, name+".gz")
	if err != nil {
		return "", fmt.Errorf("data: %s: %w: get it from %s, or name its directory with --data-dir", m.name, err, m.fetch)
	}
	return path, nil
}

func (m mnistLike) file(directory, name string, dimensions int) (Array, error) {
	path, err := m.locate(directory, name)
	if err != nil {
		return Array{}, err
	}
	array, err := decodeFile(path)
	if err != nil {
		return Array{}, fmt.Errorf("data: %s: %s: %w: get it again from %s", m.name, path, err, m.fetch)
	}
	if len(array.Shape) != dimensions {
		return Array{}, fmt.Errorf("data: %s: %s has magic number 0x%08x, for %d dimensions, expected 0x%08x, for %d: images and labels may be swapped",
			m.name, path, 0x800+len(array.Shape), len(array.Shape), 0x800+dimensions, dimensions)
	}
	return array, nil
}

func decodeFile(path string) (Array, error) {
	file, err := disk.Open(path)
	if err != nil {
		return Array{}, err
	}
	defer file.Close() // only read
	return DecodeIDX(file)
}

// locate returns the path of the first of the names that is in one of the directories.
func locate(directories []string, names ...string) (string, error) {
	for _, directory := range directories {
		for _, name := range names {
			path := filepath.Join(directory, name)
			if _, err := os.Stat(path); err == nil {
				return path, nil
			} else if !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
	}
	return "", fmt.Errorf("no %s in %s: %w", strings.Join(names, " or "), strings.Join(directories, " or "), fs.ErrNotExist)
}
