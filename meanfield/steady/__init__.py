"""Stationary densities with noise under unnormalised attention, and the branches that they form.

∂_tρ + div(ρ∇V) = κ⁻¹Δρ with V(θ) = (1/β)∫e^{β⟨θ,ω⟩}ρ(ω)dσ(ω) is the gradient flow of the free energy

    F(ρ) = ∫ρ log ρ dσ − (κ/2β)∬e^{β⟨x,y⟩}ρ(x)ρ(y)dσdσ,        and stands still where ρ = e^{κV}/N, N = ∫e^{κV}dσ.

Densities here are symmetric about one axis, u = ⟨axis, θ⟩ (on the circle: even in the angle); stationary densities without an
axis are not looked for. Stability is that of the Hessian of F, ∫h²/ρ − (κ/β)∬e^{β⟨x,y⟩}hh, on mean-zero h, relative to its first
term: as many of its eigenvalues are negative as growth rates of the linearised Fokker–Planck equation are positive, and zeros go
with zeros. Sector m of it holds h = f(u)Y_m about the axis; m = 0 keeps the symmetry, and m = 1 has one exact zero, the rotation.

Softmax attention is left out: its drift (1/β)∇log Z and the noise descend no free energy together, so that neither a crossing
of free energies nor a Hessian would mean anything there. Sources: 2606.05140 (with the coupling κ = 2K) and derived.
"""

from __future__ import annotations

from .branch import Branch, States, bifurcation_coupling, branch, branch_in_beta, read_branch, read_branches, save

__all__ = [
    "Branch",
    "States",
    "bifurcation_coupling",
    "branch",
    "branch_in_beta",
    "read_branch",
    "read_branches",
    "save",
]
