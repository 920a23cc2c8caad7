package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// classify sets the kind that err has by itself, apart from limits and contexts.
func classify(e *Error, err error) {
	var (
		dns      *net.DNSError
		cert     *tls.CertificateVerificationError
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		record   tls.RecordHeaderError
		alert    tls.AlertError
	)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Kind = KindRefused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		e.Kind = KindReset
	case errors.Is(err, syscall.ETIMEDOUT):
		e.Kind = KindTimeout
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOBUFS),
		errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Kind = KindLocal
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		e.Kind = KindUnreachable
	case errors.As(err, &dns):
		e.Kind = KindResolve
		if dns.IsTimeout {
			e.Kind = KindTimeout
		}
	case errors.As(err, &cert), errors.As(err, &unknown), errors.As(err, &hostname), errors.As(err, &record), errors.As(err, &alert):
		e.Kind = KindTLS
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		e.Kind = KindTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Kind = KindClosed
	default:
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			e.Kind = KindTimeout
		}
	}
}
