package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Store keeps one record. Its methods may be called by any number of goroutines.
//
// A call ends within CallLimit, or earlier with its context, whatever the coordinator
// does. Every error is one of those below, to be told with errors.Is; that of a context
// which has ended is ErrUnavailable and the context's.
type Store interface {
	// Read returns the record. A missing one is no error: its Revision is "".
	// A record is never older than what this Store has itself written or read, unless
	// the coordinator went back in time.
	Read(ctx context.Context) (Record, error)

	// Write replaces the record if its revision is still the given one, and returns the
	// revision of the new one. "" is that of a missing record, which is then created.
	//
	// With any error but ErrUnavailable nothing was written. With that one it may have
	// been, and may yet be, later than the return: what is read afterwards tells as far
	// as it goes, and a write that succeeds afterwards has put an end to it. ErrConflict
	// never stands for a change by the same call.
	Write(ctx context.Context, value []byte, revision string) (newRevision string, err error)

	// Close frees what the Store holds. Calls that run, and later ones, fail.
	Close() error

	// String names the coordinator and the record for logs. It has no secrets.
	String() string
}

// Record is what a store keeps.
type Record struct {
	Value    []byte // at most MaxValue bytes
	Revision string // "" without a record
}

// Bounds of a Store.
const (
	// CallLimit is how long a call may take, with the connection that it has to make.
	CallLimit = 2 * time.Second
	// MaxValue is the size in bytes of the largest value.
	MaxValue = 64 << 10
)

// The kinds of errors.
var (
	// ErrConflict: the record's revision is not the given one.
	ErrConflict = errors.New("the record was changed by another")

	// ErrUnavailable: the coordinator cannot be reached, does not answer in time, or
	// says that it cannot serve just now. Trying again helps.
	ErrUnavailable = errors.New("the coordinator is not available")

	// ErrRefused: the coordinator will not serve this client: wrong credentials, an
	// unknown authority, no permission, a value that is too large. Trying again
	// helps once somebody has changed that.
	ErrRefused = errors.New("the coordinator refuses")

	// ErrForeign: what lies where the record should be is none, or is too large for one.
	// It is left alone.
	ErrForeign = errors.New("what is stored under the cluster's name is no record of a gate")
)

// NewRevision draws a revision: 32 hexadecimal digits.
func NewRevision() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Unavailable makes ErrUnavailable of an error.
func Unavailable(err error) error { return fmt.Errorf("%w: %w", ErrUnavailable, err) }

// Refused makes ErrRefused of an error.
func Refused(err error) error { return fmt.Errorf("%w: %w", ErrRefused, err) }

var errClosed = Unavailable(errors.New("the store is closed"))

var revisionForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// IsRevision says whether s has the form of a revision. What a coordinator returns is
// checked by it.
func IsRevision(s string) bool { return revisionForm.MatchString(s) }

// CheckWrite returns the error of a Write that no coordinator need be asked for, or nil.
func CheckWrite(value []byte, revision string) error {
	switch {
	case len(value) > MaxValue:
		return fmt.Errorf("%w: a record of %d bytes, the most is %d", ErrRefused, len(value), MaxValue)
	case revision != "" && !IsRevision(revision):
		return fmt.Errorf("%w: the revision %.40q was never given out", ErrConflict, revision)
	}
	return nil
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// CheckName returns an error unless name can be that of a cluster. One rule holds for all
// stores, so that a cluster can move from one to another: it is Kubernetes' rule for names,
// without dots.
func CheckName(name string) error {
	if len(name) > 63 || !nameForm.MatchString(name) {
		return fmt.Errorf("a cluster's name has up to 63 lowercase letters, digits and hyphens, and no hyphen at an end: %.80q does not", name)
	}
	return nil
}
