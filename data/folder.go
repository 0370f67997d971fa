package data

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"penstock.example/internal/arg"
)

// What folders of pictures are without other Options. Mean and deviation are ImageNet's, of colours
// and of the brightness, as the usual recipes round them.
const folderSize = 224

var (
	imageNetMean = map[int][]float32{3: {0.485, 0.456, 0.406}, 1: {0.449}}
	imageNetStd  = map[int][]float32{3: {0.229, 0.224, 0.225}, 1: {0.226}}

	pictureFiles = []string{".png", ".jpg", ".jpeg", ".gif"}
	otherImages  = []string{".bmp", ".webp", ".tif", ".tiff", ".heic", ".avif"}
)

// folder is a Dataset of pictures in files, a directory for each class, which are read when they are
// asked for.
type folder struct {
	info   Info
	files  []pictureFile
	tables [][256]float32
}

type pictureFile struct {
	path  string
	label int
}

// openFolder finds the pictures of DIR/train/CLASS and DIR/val/CLASS, or DIR/test/CLASS, or of
// DIR/CLASS.
func openFolder(directory string, o Options) (train, test Dataset, err error) {
	size, channels := o.Size, o.Channels
	if size == 0 {
		size = folderSize
	}
	if channels == 0 {
		channels = 3
	}
	if err := arg.AtLeast("data: images", "Size", size, 1); err != nil {
		return nil, nil, err
	}
	if channels != 1 && channels != 3 {
		return nil, nil, &ConfigError{Of: "data: images", Field: "Channels", Value: channels,
			Remedy: "want 3 for colours, or 1 for the brightness"}
	}
	mean, std := o.normalisation(imageNetMean[channels], imageNetStd[channels])
	tables, err := normalised("images", mean, std, channels)
	if err != nil {
		return nil, nil, err
	}
	names, parts, err := listFolder(directory)
	if err != nil {
		return nil, nil, err
	}
	shape := []int64{int64(channels), int64(size), int64(size)}
	info := Info{Name: "images", Classes: len(names), ClassNames: names, Input: Spec{Float32, shape},
		Target: Spec{Kind: Int64}, Source: Uint8, Mean: mean, Std: std}
	for _, table := range tables {
		info.Pad = append(info.Pad, table[0])
	}
	var sets []Dataset
	for _, files := range parts {
		sets = append(sets, &folder{info, files, tables})
	}
	return trainAndTest(o, "images", sets)
}

// listFolder returns the classes, which are the directories to train with, and the pictures of each part.
func listFolder(directory string) (classes []string, parts [][]pictureFile, err error) {
	directories, err := folderParts(directory)
	if err != nil {
		return nil, nil, err
	}
	if classes, err = visible("images", directories[0], fs.FileInfo.IsDir); err != nil {
		return nil, nil, err
	}
	if len(classes) < 2 {
		return nil, nil, fmt.Errorf("data: images: %s has %d directories %q; want one for each class, of which there are at least two",
			directories[0], len(classes), classes)
	}
	for _, d := range directories {
		files, err := listPictures(d, classes)
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, files)
	}
	return classes, parts, nil
}

// folderParts returns the directory of classes to train with, and the one to test with if it exists.
func folderParts(directory string) ([]string, error) {
	const want = "a directory with a directory of pictures for each class"
	if directory == "" {
		return nil, noPlace("images", want)
	}
	info, err := os.Stat(directory)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory", directory)
	}
	if err != nil {
		return nil, fmt.Errorf("data: images: %w: name %s", err, want)
	}
	isDirectory := func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && info.IsDir()
	}
	train := filepath.Join(directory, "train")
	if !isDirectory(train) {
		return []string{directory}, nil
	}
	for _, name := range []string{"val", "test"} {
		if path := filepath.Join(directory, name); isDirectory(path) {
			return []string{train, path}, nil
		}
	}
	return []string{train}, nil
}

// visible lists a directory, sorted, without names that begin with a dot. Links are followed. Errors name
// the data set.
func visible(set, directory string, which func(fs.FileInfo) bool) (names []string, err error) {
	entries, err := os.ReadDir(directory) // sorted
	if err != nil {
		return nil, fmt.Errorf("data: %s: %w", set, err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		info, err := os.Stat(filepath.Join(directory, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("data: %s: %w", set, err)
		}
		if which(info) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// listPictures lists the pictures of all classes, in the order of classes and names. A class need
// not be in the part to test with.
func listPictures(directory string, classes []string) ([]pictureFile, error) {
	found, err := visible("images", directory, fs.FileInfo.IsDir)
	if err != nil {
		return nil, err
	}
	var files []pictureFile
	for _, class := range found {
		label, within, before := slices.Index(classes, class), filepath.Join(directory, class), len(files)
		if label < 0 {
			return nil, fmt.Errorf("data: images: %s is no class to train with; those are %s",
				within, strings.Join(classes, ", "))
		}
		names, err := visible("images", within, func(f fs.FileInfo) bool { return !f.IsDir() })
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			path, extension := filepath.Join(within, name), strings.ToLower(filepath.Ext(name))
			switch {
			case slices.Contains(pictureFiles, extension):
				files = append(files, pictureFile{path, label})
			case slices.Contains(otherImages, extension):
				return nil, fmt.Errorf("data: images: %s: %s is not read; want PNG, JPEG or GIF: convert the file, or remove it", path, extension)
			}
		}
		if len(files) == before {
			return nil, fmt.Errorf("data: images: no picture in %s; want files that end in %s, or the directory removed", within, strings.Join(pictureFiles, ", "))
		}
	}
	if files == nil {
		return nil, fmt.Errorf("data: images: no picture in %s; want a directory for each of %s", directory,
			strings.Join(classes, ", "))
	}
	return files, nil
}

// folderFiles lists the pictures that are read.
func folderFiles(directory string, _ Options) (paths []string, err error) {
	_, parts, err := listFolder(directory)
	for _, f := range slices.Concat(parts...) {
		paths = append(paths, f.path)
	}
	return paths, err
}

func (f *folder) Len() int       { return len(f.files) }
func (f *folder) Info() Info     { return f.info }
func (f *folder) pictures() bool { return true }

func (f *folder) Fill(batch *Batch, indices []int) error { return f.fillViews(batch, indices, nil) }

// fillViews reads the pictures of a batch in parallel. The error is the first picture's that cannot be read.
func (f *folder) fillViews(batch *Batch, indices []int, views []view) error {
	if err := batch.resize(f, indices); err != nil {
		return err
	}
	size := f.info.Input.Size()
	err := inParallel(len(indices), func(row int) error {
		var p *crop
		if views != nil {
			p = views[row].crop
		}
		file := f.files[indices[row]]
		batch.Target.Int64[row] = int64(file.label)
		return fillPicture(batch.Input.Float32[row*size:][:size], file.path, f.info.Input.Shape, p, f.tables)
	})
	if err != nil {
		return fmt.Errorf("data: images: %w", err)
	}
	return nil
}

// inParallel fills rows on all cores. The error is the first row's.
func inParallel(rows int, fill func(row int) error) error {
	errs := make([]error, rows)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), rows) {
		all.Go(func() {
			for row := int(next.Add(1)) - 1; row < rows; row = int(next.Add(1)) - 1 {
				errs[row] = fill(row)
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}
