package train

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"os"
)

// All that changes in a store's directory goes through these operations.

// allowed returns the error with which a test refuses an operation.
func (s Store) allowed(operation, path string) error {
	if s.before == nil {
		return nil
	}
	return s.before(operation, path)
}

func (s Store) mkdir(path string) error {
	if err := s.allowed("mkdir", path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o777)
}

func (s Store) rename(from, to string) error {
	if err := s.allowed("rename", from); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// remove removes a file or a directory with all that is in it.
func (s Store) remove(path string) error {
	if err := s.allowed("remove", path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// writeFile writes a new file, forces it to disk and says what was written.
func (s Store) writeFile(path string, write func(io.Writer) error) (mark fileMark, err error) {
	if err := s.allowed("create", path); err != nil {
		return fileMark{}, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fileMark{}, err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	tally := &tally{to: bufio.NewWriterSize(f, 1<<20), hash: sha256.New()}
	if err := write(tally); err != nil {
		return fileMark{}, err
	}
	if err := s.allowed("write", path); err != nil {
		return fileMark{}, err
	}
	if err := tally.to.Flush(); err != nil {
		return fileMark{}, err
	}
	return fileMark{Bytes: tally.bytes, SHA256: hex.EncodeToString(tally.hash.Sum(nil))}, s.toDisk(f)
}

// tally passes on what is written, and counts and hashes it.
type tally struct {
	to    *bufio.Writer
	hash  hash.Hash
	bytes int64
}

func (t *tally) Write(b []byte) (int, error) {
	n, err := t.to.Write(b)
	t.hash.Write(b[:n])
	t.bytes += int64(n)
	return n, err
}

func (s Store) syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return s.toDisk(d)
}

// toDisk returns when a file, or a directory's list of names, would survive a loss of power.
func (s Store) toDisk(f *os.File) error {
	if err := s.allowed("sync", f.Name()); err != nil {
		return err
	}
	return f.Sync()
}
