package config

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// hidden is printed in place of a secret.
const hidden = "<hidden>"

// Secret is a key or password. Every usual way to print it hides it; Reveal is
// the one way to the text.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString keeps %#v from printing the secret.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// Format keeps every verb (%x, %q and %d too) from printing the secret.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		_, _ = f.Write([]byte(s.GoString()))
		return
	}
	_, _ = f.Write([]byte(s.String()))
}

// MarshalText keeps JSON and text encodings from printing the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue keeps structured logs from printing the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// BootstrapPort is the port at which SGLang's decode workers find a prefill
// worker. The zero value means: ask the worker.
type BootstrapPort int32

const (
	// BootstrapAuto asks /server_info for disaggregation_bootstrap_port and
	// takes SGLang's default, 8998, where that does not tell.
	BootstrapAuto BootstrapPort = 0
	// BootstrapNone sends null in the place of a port.
	BootstrapNone BootstrapPort = -1
)

// Port returns the configured port; ok is false for auto and none.
func (p BootstrapPort) Port() (port int, ok bool) {
	if p > 0 {
		return int(p), true
	}
	return 0, false
}

func (p BootstrapPort) String() string {
	switch p {
	case BootstrapAuto:
		return ""
	case BootstrapNone:
		return "none"
	}
	return strconv.Itoa(int(p))
}

// UnmarshalText reads a port number or none.
func (p *BootstrapPort) UnmarshalText(text []byte) error {
	s := string(text)
	if strings.EqualFold(s, "none") {
		*p = BootstrapNone
		return nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("must be a port from 1 to 65535, or none")
	}
	*p = BootstrapPort(n)
	return nil
}

// FieldError says what is wrong with a field of a JSON object.
type FieldError struct{ Field, Message string }

func (e *FieldError) Error() string { return e.Field + " " + e.Message }

// UnmarshalJSON reads a port number, "none", or null for BootstrapAuto.
func (p *BootstrapPort) UnmarshalJSON(b []byte) error {
	switch s := string(b); s {
	case "null":
		*p = BootstrapAuto
	case `"none"`:
		*p = BootstrapNone
	default:
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 {
			return &FieldError{"bootstrap_port", "must be a port from 1 to 65535, \"none\", or absent to ask the worker"}
		}
		*p = BootstrapPort(n)
	}
	return nil
}

// OutputReserve is how many tokens of output are booked before a request starts,
// or ReserveAuto.
type OutputReserve int64

// ReserveAuto books what is learned of the model's answers.
const ReserveAuto OutputReserve = -1

func (r OutputReserve) String() string {
	if r == ReserveAuto {
		return "auto"
	}
	return strconv.FormatInt(int64(r), 10)
}

// UnmarshalText reads a number of tokens or auto.
func (r *OutputReserve) UnmarshalText(text []byte) error {
	s := string(text)
	if strings.EqualFold(s, "auto") {
		*r = ReserveAuto
		return nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return fmt.Errorf("must be a whole number of tokens, or auto")
	}
	*r = OutputReserve(n)
	return nil
}
