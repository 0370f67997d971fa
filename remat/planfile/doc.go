// Package planfile reads and writes chains and plans as JSON.
package planfile
