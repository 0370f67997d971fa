// Package disk opens what is read and writes what is written: regular files, of bounded size where they are read whole, and complete or untouched where they are written. A named pipe, a device
// or a socket in place of a file would make its reader wait for ever, or read without end.
package disk
