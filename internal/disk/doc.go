// Package disk opens files for reading and writes them safely. It only accepts regular files:
// reading a named pipe, a device or a socket could block for ever or never end. Files that are read
// whole have a bounded size. Files that are written are either complete or untouched.
package disk
