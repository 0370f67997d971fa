package data

import (
	"fmt"
	"math"
)

// Images is a Dataset of labelled byte images in memory. Inputs are Float32 [channels, height,
// width], normalised per channel to (pixel/255 - mean) / std; targets are Int64 labels.
type Images struct {
	info   Info
	pixels []uint8
	labels []uint8
	tables [][256]float32 // a channel's value of each byte
}

// NewImages returns a data set of images, Uint8 [n, channels, height, width], and their labels,
// Uint8 [n], both of which it keeps. Mean and std have a number per channel. It returns an error if
// shapes and numbers do not fit, if there are no images or if a label is not in [0, classes).
func NewImages(name string, classes int, images, labels Array, mean, std []float32) (*Images, error) {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("data: %s: %w", name, fmt.Errorf(format, args...))
	}
	if images.Kind != Uint8 || len(images.Shape) != 4 || labels.Kind != Uint8 || len(labels.Shape) != 1 {
		return nil, fail("images are %v %v and labels %v %v, expected uint8 [n channels height width] and uint8 [n]",
			images.Kind, images.Shape, labels.Kind, labels.Shape)
	}
	count, channels := images.Shape[0], images.Shape[1]
	if count != labels.Shape[0] {
		return nil, fail("%d images and %d labels, expected as many: the files belong to different sets", count, labels.Shape[0])
	}
	if len(images.Uint8) == 0 {
		return nil, fail("there are no images, their shape is %v", images.Shape)
	}
	for i, label := range labels.Uint8 {
		if int(label) >= classes {
			return nil, fail("label %d is %d, expected 0 to %d", i, label, classes-1)
		}
	}

	tables, err := normalised(name, mean, std, int(channels))
	if err != nil {
		return nil, err
	}
	s := &Images{pixels: images.Uint8, labels: labels.Uint8, tables: tables}
	s.info = Info{Name: name, Classes: classes, Input: Spec{Float32, images.Shape[1:]}, Target: Spec{Kind: Int64}, Source: Uint8, Mean: mean, Std: std}
	for _, table := range tables {
		s.info.Pad = append(s.info.Pad, table[0])
	}
	return s, nil
}

// normalised is the value of each byte in each channel. It returns an error unless there is a finite
// mean and a deviation above 0 for each.
func normalised(name string, mean, std []float32, channels int) ([][256]float32, error) {
	if len(mean) != channels || len(std) != channels {
		return nil, fmt.Errorf("data: %s: mean %v and std %v, expected a number for each of %d channels", name, mean, std, channels)
	}
	tables := make([][256]float32, channels)
	for c := range tables {
		if !finite(mean[c]) || !finite(std[c]) || std[c] <= 0 {
			return nil, fmt.Errorf("data: %s: channel %d has mean %v and std %v, expected finite numbers and std above 0", name, c, mean[c], std[c])
		}
		for pixel := range tables[c] {
			// In float32 and in this order, as torchvision's ToTensor and Normalize compute it: the
			// same bits.
			tables[c][pixel] = (float32(pixel)/255 - mean[c]) / std[c]
		}
	}
	return tables, nil
}

func finite(x float32) bool {
	return !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0)
}

// Len implements Dataset.
func (s *Images) Len() int { return len(s.labels) }

// Info implements Dataset.
func (s *Images) Info() Info { return s.info }

// Fill implements Dataset.
func (s *Images) Fill(batch *Batch, indices []int) error {
	if err := batch.begin(s, indices); err != nil {
		return err
	}
	size := s.info.Input.Size()
	for row, index := range indices {
		batch.Target.Int64[row] = int64(s.labels[index])
		from, to := s.pixels[index*size:][:size], batch.Input.Float32[row*size:][:size]
		byTables(to, from, s.tables)
	}
	return nil
}

// byTables writes the value of each byte, as its channel's table has it, or the one of all channels.
func byTables(to []float32, from []uint8, tables [][256]float32) {
	plane := len(from) / len(tables)
	for c := range tables {
		table, from, to := &tables[c], from[c*plane:][:plane], to[c*plane:][:plane]
		for i, pixel := range from {
			to[i] = table[pixel]
		}
	}
}
