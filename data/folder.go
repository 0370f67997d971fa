package data

import (
	"cmp"
	"fmt"
	"image"
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
	parts, err := folderParts(directory)
	if err != nil {
		return nil, nil, err
	}
	names, err := classNames(parts[0])
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
	for _, part := range parts {
		files, err := listPictures(part, names)
		if err != nil {
			return nil, nil, err
		}
		sets = append(sets, &folder{info, files, tables})
	}
	return trainAndTest(o, "images", sets)
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

// classNames are the directories in a directory, sorted.
func classNames(directory string) ([]string, error) {
	names, err := visible(directory, fs.FileInfo.IsDir)
	if err != nil {
		return nil, err
	}
	if len(names) < 2 {
		return nil, fmt.Errorf("data: images: %s has %d directories %q; want one for each class, of which there are at least two", directory, len(names), names)
	}
	return names, nil
}

// visible lists a directory without names that begin with a dot. Links are followed.
func visible(directory string, which func(fs.FileInfo) bool) ([]string, error) {
	entries, err := os.ReadDir(directory) // sorted
	if err != nil {
		return nil, fmt.Errorf("data: images: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		info, err := entry.Info()
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			info, err = os.Stat(filepath.Join(directory, entry.Name()))
		}
		if err != nil {
			return nil, fmt.Errorf("data: images: %w", err)
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
	found, err := visible(directory, fs.FileInfo.IsDir)
	if err != nil {
		return nil, err
	}
	for _, name := range found {
		if !slices.Contains(classes, name) {
			return nil, fmt.Errorf("data: images: %s is no class to train with; those are %s",
				filepath.Join(directory, name), strings.Join(classes, ", "))
		}
	}
	var files []pictureFile
	for label, class := range classes {
		if !slices.Contains(found, class) {
			continue
		}
		within, before := filepath.Join(directory, class), len(files)
		names, err := visible(within, func(fs.FileInfo) bool { return true })
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
			case extension == "":
				if info, err := os.Stat(path); err == nil && info.IsDir() {
					return nil, fmt.Errorf("data: images: %s is a directory within a class; want pictures in it: name the directory that has the classes", path)
				}
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
	parts, err := folderParts(directory)
	if err != nil {
		return nil, err
	}
	names, err := classNames(parts[0])
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		files, err := listPictures(part, names)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			paths = append(paths, f.path)
		}
	}
	return paths, nil
}

func (f *folder) Len() int       { return len(f.files) }
func (f *folder) Info() Info     { return f.info }
func (f *folder) pictures() bool { return true }

func (f *folder) Fill(batch *Batch, indices []int) error { return f.fillViews(batch, indices, nil) }

// fillViews reads the pictures of a batch side by side, on all cores. The first in the batch's order
// that cannot be read is the error.
func (f *folder) fillViews(batch *Batch, indices []int, views []view) error {
	if err := batch.resize(f, indices); err != nil {
		return err
	}
	err := inParallel(len(indices), func() func(row int) error {
		picture := image.NewRGBA(image.Rect(0, 0, int(f.info.Input.Shape[2]), int(f.info.Input.Shape[1])))
		return func(row int) error {
			var p *crop
			if views != nil {
				p = views[row].crop
			}
			return f.fillRow(batch, row, f.files[indices[row]], picture, p)
		}
	})
	if err != nil {
		return fmt.Errorf("data: images: %w", err)
	}
	return nil
}

// inParallel fills rows on all cores. Each goroutine fills with a function of its own, which worker
// makes. The error is the first row's.
func inParallel(rows int, worker func() func(row int) error) error {
	errs := make([]error, rows)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), rows) {
		all.Go(func() {
			fill := worker()
			for row := int(next.Add(1)) - 1; row < rows; row = int(next.Add(1)) - 1 {
				errs[row] = fill(row)
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

func (f *folder) fillRow(batch *Batch, row int, file pictureFile, resized *image.RGBA, p *crop) error {
	picture, err := readPicture(file.path)
	if err != nil {
		return err
	}
	resize(resized, picture, p)
	size := f.info.Input.Size()
	pixels(batch.Input.Float32[row*size:][:size], resized, f.tables)
	batch.Target.Int64[row] = int64(file.label)
	return nil
}
