package data

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
)

// decodeNPY reads an array as numpy.save writes it, of any version of the format
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): float32 and float64
// become Float32, uint8 Uint8, and int32 and int64 Int64, all little-endian and in C order.
//
// It returns an error for anything else, for a header that is not exactly such a one, for data cut
// short and for bytes that follow. Memory grows with the data, not with the header's shape.
func decodeNPY(r io.Reader) (Array, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	header, err := readNPYHeader(buffered)
	if err != nil {
		return Array{}, err
	}
	descr, shape, err := parseNPYHeader(header)
	if err != nil {
		return Array{}, err
	}
	size, err := elements(shape)
	if err != nil {
		return Array{}, err
	}
	array := Array{Shape: shape}
	if err := array.readNPY(buffered, descr, size); err != nil {
		return Array{}, fmt.Errorf("shape %v of %s: %w", shape, descr, err)
	}
	return array, nil
}

// maxNPYHeader is the longest header that is read. Arrays of numbers have headers of 118 bytes.
const maxNPYHeader = 1 << 16

// readNPYHeader reads magic number, version and length, and returns the text that they announce.
func readNPYHeader(r io.Reader) (string, error) {
	var start [8]byte
	if n, err := io.ReadFull(r, start[:]); err != nil {
		return "", truncated(err, int64(n), 8, "the magic number")
	}
	if string(start[:6]) != "\x93NUMPY" {
		return "", fmt.Errorf("it begins with %q; want \"\\x93NUMPY\": this is no npy file", start[:6])
	}
	width := 4
	switch version := [2]byte(start[6:]); version {
	case [2]byte{1, 0}:
		width = 2
	case [2]byte{2, 0}, [2]byte{3, 0}:
	default:
		return "", fmt.Errorf("it has version %d.%d of the format; want 1.0, 2.0 or 3.0", version[0],
			version[1])
	}
	length := make([]byte, 4)
	if n, err := io.ReadFull(r, length[:width]); err != nil {
		return "", truncated(err, int64(n), int64(width), "the header's length")
	}
	size := binary.LittleEndian.Uint32(length)
	if size > maxNPYHeader {
		return "", fmt.Errorf("the header has %d bytes; want at most %d", size, maxNPYHeader)
	}
	header := make([]byte, size)
	if n, err := io.ReadFull(r, header); err != nil {
		return "", truncated(err, int64(n), int64(size), "the header")
	}
	return string(header), nil
}

var (
	npyDescr = regexp.MustCompile(`['"]descr['"]:\s*['"]([^'"]*)['"]`)
	npyOrder = regexp.MustCompile(`['"]fortran_order['"]:\s*False`)
	npyShape = regexp.MustCompile(`['"]shape['"]:\s*\(([0-9, ]*)\)`)
)

// parseNPYHeader reads the header's Python dictionary, such as
//
//	{'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), }
func parseNPYHeader(header string) (descr string, shape []int64, err error) {
	found, sizes := npyDescr.FindStringSubmatch(header), npyShape.FindStringSubmatch(header)
	if found == nil || sizes == nil || !npyOrder.MatchString(header) {
		return "", nil, fmt.Errorf("header %q; want an array of one type in C order: save numpy.ascontiguousarray(x)", header)
	}
	for size := range strings.FieldsFuncSeq(sizes[1], func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.ParseInt(size, 10, 62)
		if err != nil {
			return "", nil, fmt.Errorf("header %q: %w", header, err)
		}
		shape = append(shape, n)
	}
	return found[1], shape, nil
}

// elements is the product of a shape.
func elements(shape []int64) (int64, error) {
	size := uint64(1)
	for _, dim := range shape {
		high, low := bits.Mul64(size, uint64(dim))
		if high != 0 || low >= 1<<60 {
			return 0, fmt.Errorf("shape %v, expected the product to be below 2^60", shape)
		}
		size = low
	}
	return int64(size), nil
}

// readNPY reads the numbers, and then the end of r.
func (a *Array) readNPY(r io.Reader, descr string, size int64) error {
	little := binary.LittleEndian
	switch descr {
	case "<f4":
		a.Kind = Float32
		return readNumbers(r, &a.Float32, size, 4,
			func(b []byte) float32 { return math.Float32frombits(little.Uint32(b)) })
	case "<f8":
		a.Kind = Float32
		return readNumbers(r, &a.Float32, size, 8,
			func(b []byte) float32 { return float32(math.Float64frombits(little.Uint64(b))) })
	case "<i4":
		a.Kind = Int64
		return readNumbers(r, &a.Int64, size, 4, func(b []byte) int64 { return int64(int32(little.Uint32(b))) })
	case "<i8":
		a.Kind = Int64
		return readNumbers(r, &a.Int64, size, 8, func(b []byte) int64 { return int64(little.Uint64(b)) })
	case "|u1":
		a.Kind = Uint8
		return readNumbers(r, &a.Uint8, size, 1, func(b []byte) uint8 { return b[0] })
	}
	return errors.New("want float32, float64, int32, int64 or uint8, little-endian: save x.astype('float32'), or astype('int64') for classes")
}

// readNumbers reads size numbers of width bytes, and then the end of r. The slice grows with the data.
func readNumbers[N any](r io.Reader, to *[]N, size int64, width int, number func([]byte) N) error {
	block := make([]byte, 1<<16)
	for left := size; left > 0; {
		part := block[:min(left*int64(width), int64(len(block)))]
		n, err := io.ReadFull(r, part)
		if err != nil {
			return truncated(err, (size-left)*int64(width)+int64(n), size*int64(width), "the data")
		}
		for i := 0; i < len(part); i += width {
			*to = append(*to, number(part[i:]))
		}
		left -= int64(len(part) / width)
	}
	if n, err := io.ReadFull(r, block[:1]); n > 0 {
		return fmt.Errorf("more bytes follow the expected %d of data", size*int64(width))
	} else if err != io.EOF {
		return err
	}
	return nil
}
