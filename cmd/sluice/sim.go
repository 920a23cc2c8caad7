package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newSim() *cobra.Command {
	return &cobra.Command{
		Use:   "sim",
		Short: "Run simulated engines",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("cannot simulate: the engines are not part of this build")
		},
	}
}
