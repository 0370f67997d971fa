package data

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
)

// decodeIDX reads an array of bytes in the IDX format, plain or compressed with gzip, told apart by
// content. The format (http://yann.lecun.com/exdb/mnist/) is two zero bytes, a byte for the kind,
// (8, unsigned bytes), a byte for the number of dimensions, the dimensions as 32-bit big-endian integers, and the numbers.
//
// It returns an error for anything else, for data cut short and for bytes that follow. Memory grows
// with the data, not with the dimensions of the header.
func decodeIDX(r io.Reader) (Array, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	start, err := buffered.Peek(2)
	if err != nil && err != io.EOF {
		return Array{}, err
	}
	if !bytes.Equal(start, []byte{0x1f, 0x8b}) { // RFC 1952, section 2.3.1
		return readIDX(buffered)
	}

	unzipped, err := gzip.NewReader(buffered)
	if err == nil {
		var array Array
		if array, err = readIDX(unzipped); err == nil {
			return array, nil
		}
	}
	return Array{}, fmt.Errorf("the gzip data: %w", err)
}

func readIDX(r io.Reader) (Array, error) {
	var magic [4]byte
	if n, err := io.ReadFull(r, magic[:]); err != nil {
		return Array{}, truncated(err, int64(n), 4, "the magic number")
	}
	if magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || magic[3] == 0 {
		return Array{}, fmt.Errorf("magic number 0x%x, expected 0x000008 and the number of dimensions: this is no IDX file of bytes",
			magic)
	}

	header := make([]byte, 4*int(magic[3]))
	if n, err := io.ReadFull(r, header); err != nil {
		return Array{}, truncated(err, int64(n), int64(len(header)), "the dimensions")
	}
	array := Array{Kind: Uint8}
	for ; len(header) > 0; header = header[4:] {
		array.Shape = append(array.Shape, int64(binary.BigEndian.Uint32(header)))
	}
	size, err := elements(array.Shape)
	if err != nil {
		return Array{}, err
	}
	if err := array.readNPY(r, "|u1", size); err != nil {
		return Array{}, fmt.Errorf("dimensions %v: %w", array.Shape, err)
	}
	return array, nil
}

// truncated says how much there was if err is an early end, and is err otherwise.
func truncated(err error, found, expected int64, what string) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("truncated: %d bytes of %s, expected %d: %w", found, what, expected,
			io.ErrUnexpectedEOF)
	}
	return err
}
