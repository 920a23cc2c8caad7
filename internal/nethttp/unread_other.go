//go:build !linux

package nethttp

// unread is for Linux.
func (c *conn) unread() bool { return false }
