"""How far can the explanation of a fitted model be trusted?"""
